"""An emulated switch that runs in-network services: admission, NetCache and NetChain, and the same on servers."""
