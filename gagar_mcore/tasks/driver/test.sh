#!/bin/sh
exec python3 -I -S "$(dirname "$0")/run_tests.py"
