"""Classes of the kernel with what guests add to them, as applications use them: `affinity.App`, `Client`, `Worker`."""
