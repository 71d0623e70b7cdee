"""What a replica keeps on disk and proves to others: the state map, the history, the store, the safety file."""
