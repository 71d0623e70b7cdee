"""What clients and brokers share: operations, receipts and the language of constraints and rules. Sans-IO."""
