"""Stand-ins for what programs import of Megatron-Core."""
