# What the repository of the working directory reveals, one finding a line: KIND VALUE.
# Usage: sh count.sh BASE
set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_COUNT=1 LC_ALL=C GIT_NO_REPLACE_OBJECTS=1
export GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
base=$(git rev-parse --verify "$1^{commit}")
echo "base $base"
echo "head $(git rev-parse --verify HEAD)"
echo "reachable $(git rev-list --objects "$base" $(git tag --merged "$base" | sed 's,^,refs/tags/,') | cut -d' ' -f1 | sort -u | wc -l)"
echo "objects $(git cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u | wc -l)"
git for-each-ref --format='%(refname)' | while IFS= read -r ref; do
    git merge-base --is-ancestor "$ref" "$base" 2>/dev/null || echo "ref $ref"
    case $ref in refs/heads/* | refs/tags/*) ;; *) echo "ref $ref" ;; esac
done
git remote | sed 's/^/remote /'
git config --local --name-only --list | grep -Ev '^core\.(repositoryformatversion|filemode|bare|logallrefupdates)$' | sed 's/^/setting /' || true
find .git \( -name '*.mtimes' -o -path '.git/logs/*' -o -path '.git/hooks/*' -o -path '.git/worktrees/*' -o -path '.git/modules/*' \
    -o -path .git/FETCH_HEAD -o -path .git/ORIG_HEAD -o -path .git/MERGE_HEAD -o -path .git/objects/info/alternates \
    -o -path .git/info/grafts -o -path '.git/lost-found/*' -o -path '.git/rr-cache/*' \) -type f | sed 's/^/file /'
