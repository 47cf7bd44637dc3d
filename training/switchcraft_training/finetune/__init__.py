"""Fine-tuning of the router on label matrices."""
