"""The look of the page: light and dark, one column on a phone."""

STYLE = """
:root { --ink: #1d2430; --soft: #5c6675; --paper: #fff; --card: #f5f7fa; --edge: #dde3ea;
  --accent: #1565c0; --bad: #b3261e; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --soft: #9aa6b5; --paper: #12161c; --card: #1b212a; --edge: #303945;
    --accent: #6db1ff; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 20px 16px 48px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.45rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 28px 0 8px; }
.lead { color: var(--soft); margin: 4px 0 16px; overflow-wrap: anywhere; }
.state { display: inline-block; padding: 1px 10px; border-radius: 10px; background: var(--accent);
  color: var(--paper); font-size: .85rem; }
.state.bad { background: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); gap: 10px; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 10px 12px; }
.tile b { display: block; font-size: 1.25rem; font-weight: 600; }
.tile span { color: var(--soft); font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 14px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--edge); border-radius: 8px;
  padding: 10px; }
figcaption { font-weight: 600; }
small { color: var(--soft); font-weight: 400; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--edge); }
.bar { fill: var(--accent); }
.line { fill: none; stroke: var(--accent); stroke-width: 2; }
.area { fill: var(--accent); opacity: .15; }
.wave { height: 90px; background: var(--card); border-radius: 6px; }
.wave path { stroke: var(--accent); stroke-width: 1.2; fill: none; }
.segment0 { fill: var(--accent); opacity: .12; }
.segment1 { fill: var(--accent); opacity: .24; }
.scroll { overflow-x: auto; }
.scroll + .scroll { margin-top: 16px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--edge);
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { overflow-wrap: anywhere; min-width: 5em; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0; }
.prompt { color: var(--soft); }
article { border-bottom: 1px solid var(--edge); padding: 10px 0; }
audio { width: 100%; margin-top: 6px; }
"""
