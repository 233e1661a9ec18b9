"""Federated training of digits: an app of Flower."""
