"""What is served: models from folders, hub ids and GGUF files, the embedded one, and adapters."""
