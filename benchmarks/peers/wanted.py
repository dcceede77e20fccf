"""Command-line options of all contenders."""

import argparse


def wanted():
    """Seeds, output file, folder for a durable queue and archive, and the certificate authority of the web."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds")
    parser.add_argument("output")
    parser.add_argument("--durable", help="store queue, seen set, and bodies in this folder, and resume from it")
    parser.add_argument("--ca-file", default="")
    parser.add_argument("--redis", default="")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seen", action="store_true", help="keep a seen set in the spider")
    parser.add_argument("--processes", action="store_true")
    return parser.parse_args()
