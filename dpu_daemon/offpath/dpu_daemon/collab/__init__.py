"""The collaboration controller: devices check in, federated jobs ask for participants (Venn)."""
