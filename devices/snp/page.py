"""What `GET /~snp@1.0/` says."""

PAGE = """\
snp@1.0: the CPU's word on the virtual machine that this node runs in

A report is made and signed by an AMD processor for a confidential virtual machine
(SEV-SNP). This node binds it to its key set: the report's data are the SHA-256 of
{"v": "hyperbeam.quote/1", keyset, nonce, gpu} as canonical JSON, then 32 zero bytes.

  GET  /~snp@1.0/generate?nonce=<64 hex>   a report over the key set and your nonce
  POST /~snp@1.0/verify                    {report, certificates, quote: {keyset, nonce, gpu}}
  GET  /~snp@1.0/info                      whether this node has such evidence, or why not

A pass means: a genuine AMD processor with the stated firmware signed this report for a
virtual machine whose first memory has the stated measurement; its memory is encrypted,
the machine's owner cannot read it by debugging or move it, and it knew the named key set
after your nonce was chosen.

It does not mean that the software with that measurement is good. Somebody has to build
the image, or trust who did, and compare: a measurement that the policy does not list is
"code: unknown" and never verifies. It says nothing of what the program read or wrote
after its start, of attacks on the processor itself, or of keys that AMD has revoked since
(its lists are not read here). Evidence of a GPU belongs to this machine only where the
quote names its digest.
"""
