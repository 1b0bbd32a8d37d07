"use strict";
{
  const button = document.getElementById("copy");
  const url = document.getElementById("url");
  const said = document.getElementById("said");

  // Without a secure context there is no clipboard: then what is selected is copied the old way, and
  // where that is not allowed either it stays selected for the keyboard.
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(url.textContent);
      return true;
    } catch {
      getSelection().selectAllChildren(url);
      try {
        return document.execCommand("copy");
      } catch {
        return false;
      }
    }
  };

  button.addEventListener("click", async () => {
    const copied = await copy();
    said.hidden = false;
    said.textContent = copied ? "The address is copied." : "The address is selected: copy it now.";
  });
  button.hidden = false;
}
