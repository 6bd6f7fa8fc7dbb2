/* Completion for bash: an arm of a `case` for each verb, with what its parser knows, in a frame that is the same for all. */
#include "parity/parity.h"
#include "parity/run/manual.h"

#include <ctype.h>
#include <string.h>

/* The parts of "auto|gpu|sim" that are words and no placeholders. */
static void put_words(FILE *f, const assay_option_view *o)
{
    bool blank = false;
    for (int i = 0; o->words != NULL && o->words[i] != NULL; i++)
        fprintf(f, "%s%s", i > 0 ? " " : "", o->words[i]);
    for (const char *at = o->words == NULL ? o->argument : ""; *at != '\0'; at += at[0] == '|') {
        const size_t n = strcspn(at, "|");
        if (islower((unsigned char)at[0]) && strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n) {
            fprintf(f, "%s%.*s", blank ? " " : "", (int)n, at);
            blank = true;
        }
        at += n;
    }
}

static bool has_words(const assay_option_view *o)
{
    return o->words != NULL || (o->argument != NULL && islower((unsigned char)o->argument[0]));
}

static void put_names(FILE *f, const assay_program_text *t, bool valued)
{
    for (int i = 0, n = 0; i < t->n_options; i++) {
        const assay_option_view *o = &t->options[i];
        if (!valued || (o->argument != NULL && !o->optional))
            fprintf(f, "%s--%s", n++ > 0 ? " " : "", o->name);
    }
}

/* Words of the arguments behind the options: "merge" of "merge DIR ...", every verb of "[VERB]". */
static void put_arguments(FILE *f, const char *args)
{
    int n = 0;
    const parity_verb *verbs = parity_verbs(&n);
    if (args == NULL)
        return;
    if (strcmp(args, "[VERB]") == 0)
        for (int i = 0; i < n; i++)
            fprintf(f, "%s%s", i > 0 ? " " : "", verbs[i].name);
    else if (islower((unsigned char)args[0]))
        fprintf(f, "%.*s", (int)strspn(args, "abcdefghijklmnopqrstuvwxyz"), args);
}

/* In the process of the verb. */
static void describe(void *user, const assay_program_text *t)
{
    const parity_verb *verb = user;
    FILE *f = stdout;
    fprintf(f, "    %s)\n        options='", verb->name);
    put_names(f, t, false);
    fputs("'\n        valued='", f);
    put_names(f, t, true);
    fputs("'\n        arguments='", f);
    put_arguments(f, t->args_doc);
    fputs("'\n        case $option in\n", f);
    for (int i = 0; i < t->n_options; i++) {
        const assay_option_view *o = &t->options[i];
        if (o->argument != NULL && strncmp(o->argument, "DIR", 3) == 0)
            fprintf(f, "        --%s) folders=1 ;;\n", o->name);
        if (!has_words(o))
            continue;
        fprintf(f, "        --%s) %swords='", o->name, o->list ? "list=1 " : "");
        put_words(f, o);
        fputs("' ;;\n", f);
    }
    fputs("        esac\n        ;;\n", f);
}

static const char head[] =
    "_assay() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev='' before='' option='' prefix='' with=''\n"
    "    local verb=${COMP_WORDS[1]:-} options='' valued='' arguments='' words='' list='' folders='' "
    "value=''\n"
    "    COMPREPLY=()\n"
    "    ((COMP_CWORD < 1)) || prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    ((COMP_CWORD < 2)) || before=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    # --option=value is three words where = divides words, and one where it does not\n"
    "    if [[ $cur == = ]]; then\n"
    "        option=$prev cur='' with=1\n"
    "    elif [[ $prev == = ]]; then\n"
    "        option=$before with=1\n"
    "    elif [[ $cur == --*=* ]]; then\n"
    "        option=${cur%%=*} prefix=${cur%%=*}= cur=${cur#*=} with=1\n"
    "    elif [[ $prev == --* ]]; then\n"
    "        option=$prev\n"
    "    fi\n";
static const char tail[] =
    "    esac\n"
    "    if [[ -n $option && ( -n $with || \" $valued \" == *\" $option \"* ) ]]; then\n"
    "        [[ -z $list ]] || { value=${cur##*,} && prefix+=${cur%\"$value\"} cur=$value; }\n"
    "        if [[ -n $words ]]; then\n"
    "            mapfile -t COMPREPLY < <(compgen -P \"$prefix\" -W \"$words\" -- \"$cur\")\n"
    "        elif [[ -n $folders ]]; then\n"
    "            mapfile -t COMPREPLY < <(compgen -P \"$prefix\" -d -- \"$cur\")\n"
    "            compopt -o filenames 2>/dev/null\n"
    "        fi\n"
    "    elif [[ $cur == -* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\")\n"
    "    elif [[ -n $arguments ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$arguments\" -- \"$cur\")\n"
    "    fi\n"
    "}\n"
    "complete -o default -F _assay assay\n";

assay_status parity_completion_bash(FILE *out)
{
    int n;
    const parity_verb *verbs = parity_verbs(&n);
    fprintf(out, "# bash completion of assay %s, made by `assay completion bash`\n%s", parity_version(),
            head);
    fputs("    if ((COMP_CWORD == 1)); then\n        mapfile -t COMPREPLY < <(compgen -W '", out);
    for (int i = 0; i < n; i++)
        fprintf(out, "%s ", verbs[i].name);
    fputs("--help --version' -- \"$cur\")\n        return\n    fi\n    case $verb in\n", out);
    for (int i = 0; i < n; i++)
        ASSAY_TRY(parity_verb_describe(&verbs[i], describe));
    fputs(tail, out);
    return ASSAY_OK;
}
