"""The contracts that all other rooms build on."""
