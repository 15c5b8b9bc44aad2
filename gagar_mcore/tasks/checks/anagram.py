"""Whether the answer is the word in the data with its letters in another order."""

import json
import sys
from pathlib import Path

answer, data = (Path(path).read_text() for path in sys.argv[1:3])
word = json.loads(data)["word"]
sys.exit(not (sorted(answer.strip()) == sorted(word) and answer.strip() != word))
