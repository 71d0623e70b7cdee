"""The admin socket: how the operator speaks to a broker that runs, on the same machine."""
