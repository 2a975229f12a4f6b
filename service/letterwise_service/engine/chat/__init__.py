"""Chat: conversations as ids, rows in a line, prompts read a chunk a step, and mlx-lm's batch stepped."""
