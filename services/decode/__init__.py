"""A decode instance: receives a computed prompt and continues it."""
