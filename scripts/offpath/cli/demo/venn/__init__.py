"""`offpath demo venn`: federated jobs of Flower that share one population of nodes."""
