"""One run for every seed and encoder, and how far their figures lie apart."""
