"""From a trained router to the artifact that the service loads."""
