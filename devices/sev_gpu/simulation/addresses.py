"""Hosts that cannot exist (RFC 6761), so that no real service is asked about simulated GPUs.

Even a device's own certificate names the status service, which the genuine ones do not.
"""

RIM_URL = "http://rim.simulated.invalid"
OCSP_URL = "http://ocsp.simulated.invalid"
