"""Who leads a view: pure functions of the view, the certified ancestry and how the view was entered (P8)."""
