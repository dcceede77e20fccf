"""What every peer is asked for on its command line."""

import argparse


def wanted():
    """Seeds, where pages go, a folder for a durable queue and archive, and the authority that the web's TLS is by."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds")
    parser.add_argument("output")
    parser.add_argument("--durable", help="keep queue, seen set and bodies in this folder, and resume from it")
    parser.add_argument("--ca-file", default="")
    parser.add_argument("--redis", default="")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seen", action="store_true", help="the spider has a seen set of its own")
    parser.add_argument("--processes", action="store_true")
    return parser.parse_args()
