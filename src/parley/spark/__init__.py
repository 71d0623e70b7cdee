"""The data pipeline on Spark: a source that checks what it is fed, a sink that publishes once, and the auditor's tables."""
