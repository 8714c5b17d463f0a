/* The choice between light and dark; the system decides unless a person does. */

type Choice = "auto" | "light" | "dark";

let choice = $state<Choice>(stored());
apply();

export const theme = {
  get choice(): Choice {
    return choice;
  },
  set choice(value: Choice) {
    choice = value;
    localStorage.setItem("keepstate-theme", value);
    apply();
  },
};

function apply(): void {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

function stored(): Choice {
  try {
    const found = localStorage.getItem("keepstate-theme");
    return found === "light" || found === "dark" ? found : "auto";
  } catch {
    return "auto"; // the browser keeps nothing
  }
}
