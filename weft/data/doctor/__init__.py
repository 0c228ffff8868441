"""The data doctor: finds copies, leaks between splits, wrong labels, outliers, poor images and imbalance. One file per check."""
