"""What a broker tells machines that watch it: numbers, and whether it lives and takes part."""
