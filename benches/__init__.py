"""headrace beside its peers."""
