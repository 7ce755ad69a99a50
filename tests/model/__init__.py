"""Any sequence of calls does what a model says: the engine beside it, step by step."""
