"""Assigns trees to jobs, shares roots between jobs, and maps trees to ranks and switches."""
