"""A prefill instance: computes prompts and hands their KV blocks to a decode instance."""
