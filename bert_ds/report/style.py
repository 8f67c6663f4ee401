"""The style sheet of a report: one column on a telephone, light or dark like the reader's system.

Figures stay on a light card in both, so that their text keeps its contrast.
"""

CSS = """
:root { color-scheme: light dark; --page: #f5f6f8; --card: #ffffff; --ink: #1b1f24;
  --soft: #5a6472; --line: #d9dee5; --accent: #0b62a8; --warn: #fff4d6; --warn-line: #d9a400; }
@media (prefers-color-scheme: dark) { :root { --page: #12151a; --card: #1c2128; --ink: #e8ebef;
  --soft: #a3adba; --line: #343b46; --accent: #7cbcf2; --warn: #352c10; --warn-line: #b08a10; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 82rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
header p { margin: .35rem 0 0; color: var(--soft); overflow-wrap: anywhere; }
.status { display: inline-block; font-size: .85rem; font-weight: 600; padding: .1rem .6rem;
  margin-left: .4rem; border: 1px solid var(--line); border-radius: 1rem; vertical-align: middle;
  background: var(--card); }
.status.unfinished { background: var(--warn); border-color: var(--warn-line); }
.notes { background: var(--warn); border-left: 4px solid var(--warn-line); border-radius: 6px;
  padding: .8rem 1rem; margin-top: 1.25rem; overflow-wrap: anywhere; }
.notes h2 { margin: 0 0 .3rem; font-size: 1rem; }
.notes ul { margin: 0; padding-left: 1.2rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr));
  gap: .75rem; margin: 1.25rem 0 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .8rem 1rem; min-width: 0; overflow-wrap: anywhere; }
.cards dt { color: var(--soft); font-size: .85rem; }
.cards dd { margin: 0; color: var(--soft); font-size: .85rem; }
.cards dd.value { font-size: 1.5rem; font-weight: 650; line-height: 1.3; color: var(--ink);
  font-variant-numeric: tabular-nums; }
@media (max-width: 70rem) { .cards { grid-template-columns: repeat(3, 1fr); } }
@media (max-width: 30rem) { .cards { grid-template-columns: 1fr 1fr; }
  .cards dd.value { font-size: 1.25rem; } figure { padding: .6rem .4rem; } }
.figures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
figure { margin: 0; background: #ffffff; color: #1b1f24; border: 1px solid var(--line);
  border-radius: 8px; padding: .8rem .8rem .6rem; min-width: 0; }
figure svg { display: block; width: 100%; max-width: 46rem; height: auto; margin: 0 auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: Arial, "Helvetica Neue", "Liberation Sans", sans-serif !important; }
figcaption { font-size: .85rem; color: #5a6472; margin-top: .3rem; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { padding: .45rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
thead th { color: var(--ink); overflow-wrap: anywhere; }
tbody tr:last-child > * { border-bottom: 0; }
th:first-child { text-align: left; }
td { white-space: nowrap; }
table.pairs th { width: 45%; }
table.pairs td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.tables { display: grid; gap: 0 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.tables > * { min-width: 0; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: .5rem 0 0;
  padding: .8rem 1rem; overflow-x: auto; font: .85rem/1.45 ui-monospace, Menlo, Consolas,
  monospace; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media print { body { background: #ffffff; } figure, .cards div { break-inside: avoid; } }
"""
