"""What hosts import: requester client, helper that serves kernels, training runtime."""
