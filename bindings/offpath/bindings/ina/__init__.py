"""INA fabric: what ranks and emulated switches say to each other, and a rank's emulated link."""
