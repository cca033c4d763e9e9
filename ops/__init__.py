"""What stands behind `make`: one command per name the operator types."""
