"""From judged answers to training rows: deduplication, splits, label matrices."""
