"""The controller of INA sharing: which job gets which tree (docs/design.md, In-network aggregation)."""
