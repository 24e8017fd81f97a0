"""The parts of the simulated GPUs: certificates, reports, reference manifests, status answers."""
