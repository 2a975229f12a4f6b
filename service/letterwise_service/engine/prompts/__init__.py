"""Text to token ids: the tokenizer, its chat template, and control tokens that no state may hold. Touches no mlx."""
