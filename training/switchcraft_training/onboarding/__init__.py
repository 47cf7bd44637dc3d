"""Changes of an artifact's pool without retraining: models join, leave, or change their price."""
