"""Matrix products and convolutions by cuBLASLt and cuDNN: what they can do, and how they are called."""
