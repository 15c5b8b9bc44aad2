# Replaces the repository of the working directory by one that knows BASE and what came before it, and packs it to /tmp/git.PART.
# Usage: sh clean.sh BASE
set -e
work=$(pwd)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_COUNT=2 LC_ALL=C
export GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' GIT_CONFIG_KEY_1=core.logAllRefUpdates GIT_CONFIG_VALUE_1=false
base=$(git rev-parse --verify "$1^{commit}")
git update-ref refs/kept/base "$base"
new=$(mktemp -d)
git init -q --template= --initial-branch=main "$new"
cd "$new"
git fetch -q --no-tags --update-shallow --update-head-ok "$work" refs/kept/base:refs/heads/main
git -C "$work" tag --merged "$base" | while IFS= read -r tag; do
    git fetch -q --no-tags --update-shallow "$work" "refs/tags/$tag:refs/tags/$tag"
done
cd "$work"
rm -rf .git
mv "$new/.git" .git
rmdir "$new"
git reset -q || true
git repack -adq
git prune-packed -q
rm -rf .git/logs .git/FETCH_HEAD .git/ORIG_HEAD .git/hooks .git/branches .git/description
tar -cf - .git | split -b 8m -a 4 -d - /tmp/git.
