"""Posts rows on over HTTP, each until its receiver takes it."""
