"""crossdock: LLM serving with prefill and decode as separate services."""
