"""The data doctor: looks for copies, leaks between splits, wrong labels, outliers, poor images and imbalance. One file a check."""
