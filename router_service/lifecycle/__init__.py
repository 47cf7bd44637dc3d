"""What requests are answered with, how it is made, and how it is replaced; no HTTP of its own."""
