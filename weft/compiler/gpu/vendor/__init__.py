"""Matrix products, convolutions and attention by NVIDIA's libraries: what they support, and the data of their calls."""
