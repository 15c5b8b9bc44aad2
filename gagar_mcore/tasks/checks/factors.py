"""Whether the answer is two whole numbers above 1 whose product is the number in the data."""

import json
import re
import sys
from pathlib import Path

answer, data = (Path(path).read_text() for path in sys.argv[1:3])
numbers = [int(word) for word in re.findall(r"-?\d{1,9}", answer)]
sys.exit(not (len(numbers) == 2 and min(numbers) > 1 and numbers[0] * numbers[1] == json.loads(data)["product"]))
