"""What turns a replica into a running broker: certificates, secrets and the asyncio runtime."""
