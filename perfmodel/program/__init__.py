"""Programs as lists of operators: read from a profile or captured without a GPU, counted, priced, and predicted on other devices."""
