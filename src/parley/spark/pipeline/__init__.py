"""A worked pipeline: what two tenants of one network measure, from signed messages to tables that somebody reads."""
